"""The decisions of the controller: which actors are healthy, and which are replaced."""
