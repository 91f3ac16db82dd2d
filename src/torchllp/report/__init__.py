"""What runs did, as pictures, tables and pages."""
