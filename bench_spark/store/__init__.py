"""The Delta tables of a store.

- `schema`: names, columns and properties of all tables, as plain data: the only list of columns;
- `arrow`: Arrow schemas made from it, and histograms as an Arrow column;
- `delta`: `Store`, which makes, migrates, appends to and reads the tables by deltalake;
- `checksums`: version checksums beside commits, which make streaming reads from them cheaper.
"""
