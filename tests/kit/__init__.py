"""What tests of several packages use."""
