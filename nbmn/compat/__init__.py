"""The one door to Chainer."""
