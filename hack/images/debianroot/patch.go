package debianroot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// patch replaces one piece of text in one file of the root.
type patch struct {
	file string
	old  string
	new  string
}

const torchDistributed = "usr/lib/python3/dist-packages/torch/distributed/"

// torchPatches let the stores that torchrun opens obey USE_LIBUV, as those of a training
// program already do. Debian builds PyTorch without libuv, so a store that does not ask
// cannot be opened at all.
var torchPatches = []patch{
	{
		file: torchDistributed + "elastic/rendezvous/c10d_rendezvous_backend.py",
		old: `                timeout=timedelta(seconds=read_timeout),
            )
`,
		new: `                timeout=timedelta(seconds=read_timeout),
                use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
            )
`,
	},
	{
		file: torchDistributed + "elastic/rendezvous/dynamic_rendezvous.py",
		old: `            is_master=True,
            multi_tenant=True,
        )
`,
		new: `            is_master=True,
            multi_tenant=True,
            use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
        )
`,
	},
	{
		file: torchDistributed + "elastic/rendezvous/static_tcp_rendezvous.py",
		old: `                multi_tenant=True,
            )
`,
		new: `                multi_tenant=True,
                use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
            )
`,
	},
	{
		file: torchDistributed + "elastic/rendezvous/static_tcp_rendezvous.py",
		old:  "import datetime\nimport logging\n",
		new:  "import datetime\nimport logging\nimport os\n",
	},
	{
		file: torchDistributed + "rendezvous.py",
		old: `            is_master=False,
            timeout=timeout,
        )
`,
		new: `            is_master=False,
            timeout=timeout,
            use_libuv=use_libuv,
        )
`,
	},
}

// apply changes the files below root. Text that is not there exactly once means that the
// package is another version than the patch was written for: that is an error, because the
// image would fail only later, in a training job.
func apply(root string, patches []patch) error {
	for _, p := range patches {
		file := filepath.Join(root, p.file)
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("patch: %w", err)
		}
		if n := strings.Count(string(text), p.old); n != 1 {
			return fmt.Errorf("patch %s: expected this text once, found it %d times; look at what the package changed and correct the patch:\n%s",
				p.file, n, p.old)
		}
		changed := strings.Replace(string(text), p.old, p.new, 1)
		if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
			return fmt.Errorf("patch: %w", err)
		}
	}
	return nil
}
