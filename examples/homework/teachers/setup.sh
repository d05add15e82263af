#!/usr/bin/env bash
# Gradescope runs this once, as it builds the autograder's image.
set -e
apt-get update && apt-get install -y git python3 python3-pip
git clone --depth 1 https://huggingface.co/spaces/NAME/SPACE /autograder/specviz  # write its address here
pip3 install --break-system-packages numpy pandas pydantic psutil httpx
