from fakes.engine_doubles import Bench
from fakes.engine_worker import solo


def test_a_request_streams_the_tokens_of_the_model():
    bench = Bench()
    bench.submit("r", (1, 2, 3), max_tokens=20)
    bench.run()
    assert bench.sink.output_of("r") == solo((1, 2, 3), 20)
    bench.assert_at_rest()
