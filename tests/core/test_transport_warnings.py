"""What is wrong with the way to a server is told at the line that opened the client, where it can be put right."""

from __future__ import annotations

import pytest

from leasehold import GuaranteeWarning, Leasehold


@pytest.mark.parametrize(
    "url",
    [
        "redis://warned-of",
        "rediss://warned-of?insecure_skip_verify=true",
        "redlock://warned-1,warned-2,warned-3",
        "redis+cluster://warned-4,warned-5",
        "postgresql://user@warned-of/db?sslmode=prefer",
        "postgresql+session://user@warned-of/db?sslmode=require",
        "mysql://user@warned-of/db?ssl-mode=DISABLED",
        "mysql+session://user@warned-of/db?ssl-mode=REQUIRED",
        "etcd://warned-of",
        "zookeeper://warned-of",
        "consul://warned-of",
    ],
)
def test_a_warning_of_the_way_names_the_callers_own_line(url: str) -> None:
    with pytest.warns(GuaranteeWarning, match="whoever is on the way can") as told:
        Leasehold(url)
    assert {one.filename for one in told} == {__file__}
