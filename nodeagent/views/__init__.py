"""What commands show: documents with stable names, and texts and pictures made of them. Pure; nothing here is read back."""
