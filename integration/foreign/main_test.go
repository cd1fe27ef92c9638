// Package foreign tests a server (artifactfs serve) with clients that are not part of this project: git implementations
// in several languages and versions, git-lfs, and wrangler, the command line of Cloudflare. It also runs the clients
// that are generated from the server's OpenAPI document. The clients come from Debian (scripts/setup.sh), a newer git
// from Debian unstable, and others from npm, in the versions that the lock files in testdata name. A test whose client
// cannot be installed is skipped with a message.
package foreign

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the path of the program that the tests start.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "afs-foreign-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "artifactfs")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/artifactfs").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
