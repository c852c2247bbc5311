"""The chart of the engine over the time of a measurement, of whatever kind that is."""

from analyzer.html_report import charts, series
from analyzer.html_report.drawing import Chart
from analyzer.html_report.page import moment
from analyzer.kv_usage import kv_samples
from contract.measurement import Measurement
from contract.run_directory import MeasurementDirectory


def engine_timeline(directory: MeasurementDirectory, measurement: Measurement) -> Chart | None:
    """What was sampled during the load, with the phases behind it; None where there was no load or no sample."""
    load = next((phase for phase in measurement.phases if phase.name == "formal"), None)
    if load is None:
        return None
    began = moment(measurement.started_at)

    def since(time: str) -> float:
        return (moment(time) - began).total_seconds()

    phases = [
        (phase.name, since(phase.started_at), since(phase.finished_at))
        for phase in measurement.phases
        if phase.finished_at is not None
    ]
    samples = series.engine_samples(kv_samples(directory, measurement))
    return charts.engine_chart(samples, since(load.started_at), phases)
