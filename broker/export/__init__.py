"""Export: a range of messages as an archive to download (specification, Export; compatibility.md section 10)."""
