"""The words of the house: plain data that every room may use. No behaviour beyond arithmetic on own fields."""
