package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// triggerFile is the name of a file that is added to the main package of the copy. Its functions are left out of the
// results.
const triggerFile = "zz_walks_trigger.go"

const triggerSignal = syscall.SIGUSR2

// trigger is the source of a file that lets processes of the daemon write their coverage counters, and set them to
// zero, when they receive triggerSignal. A process announces with the file daemon.PID that it handles the signal, and
// with the directory snapshot.PID that its counters are complete.
const trigger = `package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/coverage"
	"syscall"
)

func init() {
	if len(os.Args) < 2 || os.Args[1] != "daemon" && os.Args[1] != "worker" {
		return
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	to := filepath.Join(os.Getenv("GOCOVERDIR"), fmt.Sprintf("snapshot.%d", os.Getpid()))
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	go func() {
		for range c {
			must(os.Mkdir(to+".part", 0o755))
			must(coverage.WriteCountersDir(to + ".part"))
			must(coverage.ClearCounters())
			must(os.Rename(to+".part", to))
		}
	}()
	must(os.WriteFile(filepath.Join(os.Getenv("GOCOVERDIR"), fmt.Sprintf("daemon.%d", os.Getpid())), nil, 0o644))
}
`

// build builds the git server and, with coverage counters, the command of the tree in dir. It returns the packages of
// the command; each package precedes the packages that it imports. The command is built from a copy of the tree,
// because "go build" cannot combine -overlay and -cover for a file that is added.
func (r *rig) build(dir string) (order []string, err error) {
	src := filepath.Join(r.tmp, "src")
	if err := copyTree(dir, src); err != nil {
		return nil, fmt.Errorf("copy %s: %w", dir, err)
	}
	deps, err := r.goTool(src, "list", "-deps", "./cmd/artifactfs")
	if err != nil {
		return nil, err
	}
	for name := range strings.FieldsSeq(deps) {
		if name, ours := strings.CutPrefix(name, module); ours {
			order = append(order, name)
		}
	}
	slices.Reverse(order)
	if err := os.WriteFile(filepath.Join(src, "cmd/artifactfs", triggerFile), []byte(trigger), 0o644); err != nil {
		return nil, err
	}
	if _, err := r.goTool(src, "build", "-trimpath", "-cover", "-covermode=atomic", "-coverpkg=./...", "-o", r.afs(),
		"./cmd/artifactfs"); err != nil {
		return nil, err
	}
	server := module + "integration/harness/gittest/gitserve"
	if _, err := r.goTool(".", "build", "-trimpath", "-o", r.gitserve(), server); err != nil {
		return nil, err
	}
	covdata, err := r.goTool(".", "tool", "-n", "covdata")
	r.covdata = strings.TrimSpace(covdata)
	return order, err
}

// goTool runs go in dir and returns its output.
func (r *rig) goTool(dir string, args ...string) (string, error) {
	c := exec.CommandContext(r.ctx, "go", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "CGO_ENABLED=0", strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false"))
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return string(out), nil
}

// copyTree copies the files that a build may need: all files except hidden ones and build results.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		switch {
		case rel != "." && (d.Name()[0] == '.' || rel == "bin" || rel == "dist"):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), content, 0o644)
	})
}
