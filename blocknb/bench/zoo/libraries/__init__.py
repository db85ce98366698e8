"""The calls of each library, one module per library. `register(cases)` imports the library and adds its cases."""
