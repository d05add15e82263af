#!/usr/bin/env bash
# Gradescope runs this once, as it builds the autograder's image.
set -e
apt-get update && apt-get install -y git python3 python3-venv
git clone --depth 1 https://huggingface.co/spaces/NAME/SPACE /autograder/specviz  # write its address here
python3 -m venv /autograder/python  # whether pip may install beside the system's own packages differs between images
/autograder/python/bin/pip install numpy pandas pydantic psutil httpx
