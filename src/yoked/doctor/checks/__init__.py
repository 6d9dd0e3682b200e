"""The checks, one small pure module for each subject; `yoked.doctor.catalog` lists them."""
