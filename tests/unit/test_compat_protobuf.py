"""Chainer's Caffe links and exporter on the installed protobuf."""

import numpy as np
import pytest

chainer = pytest.importorskip("chainer")
F = chainer.functions
L = chainer.links


def test_caffe_messages_are_complete():
    from chainer.links.caffe.protobuf3 import caffe_pb2

    assert (caffe_pb2.TRAIN, caffe_pb2.TEST, caffe_pb2.Phase.Value("TEST")) == (0, 1, 1)
    assert caffe_pb2.V1LayerParameter.CONVOLUTION == 4
    layer = caffe_pb2.LayerParameter(name="pool")
    assert layer.pooling_param.pool == caffe_pb2.PoolingParameter.MAX
    assert caffe_pb2.LayerParameter.FromString(layer.SerializeToString()) == layer


def test_caffe_model_computes_its_layers(tmp_path):
    from chainer.links.caffe import CaffeFunction
    from chainer.links.caffe.protobuf3 import caffe_pb2

    weight = np.random.RandomState(0).randn(3, 4).astype("f")
    net = caffe_pb2.NetParameter()
    layer = net.layer.add(name="fc", type="InnerProduct", bottom=["data"], top=["fc"])
    layer.inner_product_param.num_output = 3
    layer.inner_product_param.bias_term = False
    blob = layer.blobs.add(data=weight.ravel())
    blob.shape.dim.extend(weight.shape)
    net.layer.add(name="relu", type="ReLU", bottom=["fc"], top=["relu"])
    path = tmp_path / "net.caffemodel"
    path.write_bytes(net.SerializeToString())

    x = np.random.RandomState(1).randn(2, 4).astype("f")
    (y,) = CaffeFunction(str(path))(inputs={"data": x}, outputs=["relu"])
    np.testing.assert_allclose(y.array, np.maximum(x @ weight.T, 0), rtol=1e-5, atol=1e-6)


def test_exported_model_is_read_back(tmp_path):
    from chainer.exporters import caffe
    from chainer.links.caffe import CaffeFunction

    class Small(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.conv = L.Convolution2D(1, 2, 3)
                self.fc = L.Linear(8, 3)

        def forward(self, x):
            return F.softmax(self.fc(F.relu(self.conv(x))))

    model = Small()
    x = np.random.RandomState(0).rand(1, 1, 4, 4).astype("f")
    with chainer.using_config("train", False):
        want = model(x).array
        caffe.export(model, [chainer.Variable(x)], str(tmp_path), export_params=True)
        read = CaffeFunction(str(tmp_path / "chainer_model.caffemodel"))
        last = read.layers[-1][2][0]
        (got,) = read(inputs={"data": x}, outputs=[last])
    np.testing.assert_allclose(got.array.reshape(want.shape), want, rtol=1e-5)


def test_source_without_a_descriptor_is_refused():
    from nbmn.compat.protobuf import serialized_descriptor

    assert serialized_descriptor("D = F(serialized_pb=_b('\\n\\x01\\xff'))") == b"\n\x01\xff"
    with pytest.raises(ValueError, match="serialized_pb"):
        serialized_descriptor("x = 1")
