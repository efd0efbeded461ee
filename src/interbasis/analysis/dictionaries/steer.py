"""Steering by a dictionary's feature: its decoder's direction is added to the stream."""

from typing import TYPE_CHECKING

import torch

from interbasis.analysis.dictionaries.descriptions import DescriptionsResult, description_text
from interbasis.analysis.prompts import open_prompt
from interbasis.analysis.stages.steer import SteerRequest, SteerResult, steered_result
from interbasis.analysis.traces.steering import Steering
from interbasis.base.errors import InterbasisError

if TYPE_CHECKING:
    from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace


def parse_feature(workspace: "DictionaryWorkspace", text: str) -> tuple[int, int]:
    """Return `ln1.3:17` as the number of the dictionary and of the feature.

    Raises:
        InterbasisError: It is not of this form, or there is no such dictionary or feature.
    """
    place, colon, number = text.rpartition(":")
    places = workspace.graph.places
    if not colon or not number.isdecimal() or place not in places:
        raise InterbasisError(
            f"expected a feature as LAYER:NUMBER with a layer of {', '.join(places)}, received {text!r}"
        )
    features = workspace.graph.header.layers[places.index(place)].features
    if int(number) >= features:
        raise InterbasisError(f"{place!r} has features 0 to {features - 1}, received {number}")
    return places.index(place), int(number)


def steer_feature(workspace: "DictionaryWorkspace", request: SteerRequest) -> SteerResult:
    """Change a feature on one prompt; its unit is the RMS of its activation where it is active.

    Raises:
        InterbasisError: There is no such feature, it was never active, or several samples were asked for.
    """
    k, feature = parse_feature(workspace, request.feature)
    if request.samples is not None:
        raise InterbasisError(
            "features of dictionaries are steered on one prompt or sample, not over several samples; leave "
            "samples out"
        )
    statistics, layer = workspace.graph.statistics[k], workspace.layers[k]
    if not statistics.frequency[feature]:
        raise InterbasisError(
            f"feature {feature} of {layer.name!r} was never active in the data of the build, so it has no "
            "unit; choose another"
        )
    unit = (statistics.square[feature] / statistics.frequency[feature]).sqrt().item()
    network = workspace.computing
    change = torch.zeros(network.nodes[layer.source_index].width, dtype=network.dtype)
    change[layer.source_columns] = request.by * unit * layer.dictionary.decoder[feature]
    prompt = open_prompt(workspace, request.prompt, request.sample, request.data)
    steering = Steering(network, network.layers[layer.source_index], change, request.start)
    found, label = workspace.stored(DescriptionsResult), ""
    if found is not None:
        described = {known.feature: known.description for known in found.layers[k].features}
        label = description_text(described.get(feature), found.words)
    result = steered_result(workspace, request, prompt, steering, (layer.name, feature, label, unit))
    return result.model_copy(update={"unit_name": "RMS activations where it is active"})
