"""Large Python environments that live outside the checkout, built once and shared. Only the standard library is used."""
