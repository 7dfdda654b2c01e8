"""The programs by a name that no folder of a user shadows: `python -m pipelined.apps.gpt2` is `python -m apps.gpt2`.

`apps` lies beside `pipelined`, in a clone and where both are installed. Importing this package makes that folder
`apps`, whatever package of that name comes first on Python's path; its programs are found below both names.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parents[2] / "apps" / "__init__.py"


def _ours() -> ModuleType:
    """The package `apps` of this project, imported.

    Raises:
        ImportError: this process has imported another package of that name.
    """
    if (imported := sys.modules.get("apps")) is not None:
        if imported.__file__ is None or not HERE.samefile(imported.__file__):
            fact = f"another package named apps is imported already ({imported.__file__}, wanted: {HERE})"
            raise ImportError(f"{fact}; import pipelined.apps first, or in a process of its own")
        return imported
    spec = spec_from_file_location("apps", HERE, submodule_search_locations=[str(HERE.parent)])
    assert spec is not None and spec.loader is not None, HERE
    sys.modules["apps"] = found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


__path__ = list(_ours().__path__)
