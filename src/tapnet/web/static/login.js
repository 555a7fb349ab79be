// Says that the token was wrong, when the server sent the form again.
if (location.search === "?wrong") {
  const message = document.getElementById("message");
  message.textContent = "That is not the token of this server. Try again.";
  message.setAttribute("role", "alert");
}
