"""What commands show: documents with stable names, and text and pictures made from them. Pure; nothing here is read back."""
