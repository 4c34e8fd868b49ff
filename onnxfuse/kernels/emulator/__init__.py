"""CUDA C++ on a CPU: kernel sources compiled by g++ and run thread by thread, with checks.  See README.md."""
