# Runs on a CPU; for a GPU: docker build --build-arg DEVICE=cuda -t specviz . && docker run --gpus all -p 7860:7860 specviz
FROM python:3.12-slim

# cpu or cuda.
ARG DEVICE=cpu
# An index of PyTorch wheels to prefer. The default wheels carry CUDA and run on a CPU too; the address of PyTorch's own
# CPU index here makes an image a quarter of the size.
ARG TORCH_INDEX=

# The models' passes are compiled, which runs them faster: on a CPU to machine code, on a GPU by Triton, which needs a C
# compiler for what launches its kernels.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# Spaces run a container as user 1000. Any other user may read its home, too: `docker run --user` finds the packages there.
RUN useradd --create-home --uid 1000 user && chmod 755 /home/user
USER user
WORKDIR /home/user/app
ENV HOME=/home/user \
    PATH=/home/user/.local/bin:$PATH \
    HF_HOME=/home/user/.cache/huggingface \
    PYTHONUNBUFFERED=1 \
    SPECVIZ_DEVICE=$DEVICE \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860 \
    GRADIO_ANALYTICS_ENABLED=False

COPY --chown=user requirements.txt .
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r requirements.txt

COPY --chown=user app.py README.md ./
COPY --chown=user specviz specviz
COPY --chown=user assets assets

EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/', timeout=4)"
CMD ["python", "app.py"]
