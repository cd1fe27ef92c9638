// Package install finds and installs programs that tests run and that are not part of this project. If a program cannot
// be installed, the test is skipped with a message.
package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Program returns the path of an installed program, and skips the test if there is none.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		gittest.Skip(t, "%v (scripts/setup.sh installs it)", err)
	}
	return path
}

// Output runs a command for at most two minutes, and returns its standard output and standard error output together.
// Errors contain this output.
func Output(t testing.TB, dir string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	// t.Context ends before functions of t.Cleanup run, which also call Output
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

// NPM installs the packages of the lock file in the directory source, and returns the directory that contains
// node_modules. The directory stays in the user's cache and is used again until the lock file changes. No install
// scripts of packages are run.
func NPM(t testing.TB, source string) string {
	t.Helper()
	npm := Program(t, "npm")
	lock, err := os.ReadFile(filepath.Join(source, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	return Once(t, filepath.Base(source)+"-"+hex.EncodeToString(sum[:6]), func(dir, _ string) error {
		if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
			return err
		}
		// `npm ci` is not used, because it fails if the registry lacks an optional package for another operating
		// system.
		out, err := Output(t, dir, os.Environ(), npm, "install", "--ignore-scripts", "--no-audit", "--no-fund")
		if err != nil {
			return fmt.Errorf("npm install: %w\n%s", err, out)
		}
		return nil
	})
}

// Once returns the directory called name in the user's cache. If it does not exist, Once calls install to create the
// directory dir, and renames dir to final. The test is skipped if install fails.
func Once(t testing.TB, name string, install func(dir, final string) error) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	final := filepath.Join(cache, "artifactfs-tests", name)
	if err := os.MkdirAll(filepath.Dir(final), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(final+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(final); err == nil {
		return final
	}
	dir := final + ".new"
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := install(dir, final); err != nil {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		gittest.Skip(t, "cannot install %s: %v", name, err)
	}
	if err := os.Rename(dir, final); err != nil {
		t.Fatal(err)
	}
	return final
}
