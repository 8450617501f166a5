"""What chooses alternates and branches: guards in CEL over signals, compiled and evaluated apart from the data path."""
