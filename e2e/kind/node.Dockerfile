# The node image that `kind build node-image` made, with the manifest of our network instead of kindnetd's.
ARG NODE_IMAGE
FROM ${NODE_IMAGE}
COPY network/default-cni.yaml /kind/manifests/default-cni.yaml
