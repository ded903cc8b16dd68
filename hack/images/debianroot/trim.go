package debianroot

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// unneeded are files and directories that no training program reads: what only a package
// manager, a compiler or a test run wants, and what belongs to the machine that built the
// root. The ROCm libraries (a fifth of the root) come with the plugins of an MPI transport
// for AMD devices; PyTorch's CPU build neither links nor opens them.
var unneeded = []string{
	"var/cache/apt/*", "var/lib/apt/lists/*", "var/cache/debconf/*", "var/log/*", "debootstrap",
	"etc/apt/sources.list", "etc/hostname", "etc/resolv.conf", "etc/machine-id",
	"usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/lintian/*", "usr/share/bug/*",
	"usr/include/*", "usr/lib/*/*.a", "usr/lib/python3*/test", "usr/lib/python3*/idlelib",
	"usr/lib/libtorch-test", "usr/lib/python3/dist-packages/torch/test", "usr/lib/python3/dist-packages/torch/bin/*test*",
	"usr/lib/python3/dist-packages/torch/bin/*Test", "usr/lib/python3/dist-packages/torch/bin/tutorial*",
	"usr/lib/python3/dist-packages/torch/include",
	"usr/lib/*/ucx/*rocm*", "usr/lib/*/libamdhip64.so*", "usr/lib/*/libamd_comgr.so*",
	"usr/lib/*/libhsa-runtime64.so*", "usr/lib/*/libhsakmt.so*", "usr/lib/*/libLLVM*.so*",
	"dev/*", "tmp/*", "run/*",
}

// testsBelow is where directories named "tests" hold a package's own tests.
const testsBelow = "usr/lib/python3/dist-packages"

// keptTests are such directories that the package itself imports.
var keptTests = []string{"usr/lib/python3/dist-packages/numpy/_core/tests"}

func trim(root string) error {
	for _, pattern := range unneeded {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, name := range found {
			if err := os.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	if err := trimTests(root); err != nil {
		return err
	}
	return trimDocs(filepath.Join(root, "usr/share/doc"))
}

func trimTests(root string) error {
	return filepath.WalkDir(filepath.Join(root, testsBelow), func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		if !entry.IsDir() || entry.Name() != "tests" || slices.Contains(keptTests, name) {
			return nil
		}
		if err := os.RemoveAll(file); err != nil {
			return err
		}
		return fs.SkipDir
	})
}

// trimDocs keeps the copyright files: the licences ask for them.
func trimDocs(doc string) error {
	return filepath.WalkDir(doc, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "copyright" {
			return err
		}
		return os.Remove(file)
	})
}
