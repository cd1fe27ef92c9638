package arch

import (
	"os/exec"
	"strings"
	"testing"
)

// The program that is built with the tag noserver starts fast because it has no part of the server, of the relay or of
// the pages, and no library that only they need.
func TestProgramWithoutServer(t *testing.T) {
	cmd := exec.Command("go", "list", "-tags", "noserver", "-deps", "./cmd/artifactfs")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 200 {
		t.Fatalf("got only %d packages", len(deps))
	}
	for _, p := range deps {
		own, _ := strings.CutPrefix(p, module)
		switch own {
		case "server", "server/records", "server/objects", "server/ui", "relay", "host/hostui",
			"github.com/minio/minio-go/v7", "modernc.org/sqlite", "github.com/jackc/pgx/v5", "github.com/alecthomas/chroma/v2",
			"github.com/spf13/cobra/doc":
			t.Errorf("the program without a server has the package %s", p)
		}
	}
}
