"""People who leave: their accounts are deleted, after an archive of all that the service knows of them."""
