"""Small programs, one for each adapter, to be run unchanged against a scripted API on 127.0.0.1."""
