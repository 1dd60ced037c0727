"""What a service does now, from the admin service's GetState and the metrics of its processes: for views of people and programs.

reader, observer = ServiceReader(["127.0.0.1:50055"], ["http://127.0.0.1:9400/metrics"]), ServiceObserver()
state = observer.observe(await reader.read())
"""
