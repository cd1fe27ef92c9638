//go:build !race

package foreign

import (
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/install"
)

var (
	program   = install.Program
	output    = install.Output
	installed = install.Once
)

// npm installs the packages of the lock file in testdata/NAME.
func npm(t *testing.T, name string) string {
	t.Helper()
	return install.NPM(t, filepath.Join("testdata", name))
}
