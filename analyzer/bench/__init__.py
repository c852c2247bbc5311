"""What a bench measured, as numbers, as text and as a page; and two benches compared."""
