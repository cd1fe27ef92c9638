package worktree_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// TestMain makes the test binary run as the process that is killed if victimEnv is set: it walks a tree with the table
// named there, prints the nodes that it returned, and kills itself with SIGKILL.
func TestMain(m *testing.M) {
	table := os.Getenv(victimEnv)
	if table == "" {
		os.Exit(m.Run())
	}
	src := worktreetest.New(successorFiles())
	tree, err := Open(table, src, Options{Root: src.Root})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := walk(tree, Root, func(path string, a Attr) { fmt.Printf("%d %d %s\n", a.Node, a.Size, path) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

const victimEnv = "WORKTREE_TEST_VICTIM_TABLE"

func successorFiles() map[string]worktreetest.File {
	files := make(map[string]worktreetest.File)
	for i := range 3000 {
		files[fmt.Sprintf("d%d/s%d/%s%d", i%7, i%31, strings.Repeat("n", i%200), i)] =
			worktreetest.File{Data: strings.Repeat("x", i)}
	}
	return files
}

func walk(tree *Tree, dir Node, visit func(path string, a Attr)) error {
	var dirs []Node
	var failed error
	err := tree.ReadDir(context.Background(), dir, 0, func(e Entry) bool {
		a, err := tree.Attr(context.Background(), e.Node)
		if err != nil {
			failed = err
			return false
		}
		path, _ := tree.Path(e.Node)
		visit(path, a)
		if a.Mode&syscall.S_IFDIR != 0 {
			dirs = append(dirs, e.Node)
		}
		return true
	})
	for _, d := range dirs {
		if failed == nil {
			failed = walk(tree, d, visit)
		}
	}
	return errors.Join(err, failed)
}

// A successor of a killed process has every node and size without a request to the source, and can add more.
func TestSuccessor(t *testing.T) {
	table := filepath.Join(t.TempDir(), "inodes")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command(self)
	victim.Env = append(os.Environ(), victimEnv+"="+table)
	victim.Stderr = os.Stderr
	out, err := victim.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("end of the victim process: got %v, want SIGKILL", err)
	}
	src := worktreetest.New(successorFiles())
	tree := openTable(t, src, table)
	lines, handed := bufio.NewScanner(strings.NewReader(string(out))), 0
	for lines.Scan() {
		var want Attr
		var path string
		if _, err := fmt.Sscan(lines.Text(), &want.Node, &want.Size, &path); err != nil {
			t.Fatal(err)
		}
		if a := stat(t, tree, path); a.Node != want.Node || a.Size != want.Size {
			t.Errorf("%s: got node %d and size %d, want %d and %d", path, a.Node, a.Size, want.Node, want.Size)
		}
		handed++
	}
	if counts := tree.Base().Counts(); int64(handed+1) != counts.Nodes || handed < 3000 {
		t.Errorf("%d nodes were returned, but %d are known", handed, counts.Nodes)
	}
	if src.Calls("Tree") != 0 || src.Calls("Size") != 0 {
		t.Errorf("the successor requested %d trees and %d sizes", src.Calls("Tree"), src.Calls("Size"))
	}
}

func TestTableIsLocked(t *testing.T) {
	src := worktreetest.New(nil)
	table := filepath.Join(t.TempDir(), "inodes")
	openTable(t, src, table)
	if tree, err := Open(table, src, Options{Root: src.Root}); err == nil {
		tree.Close()
		t.Error("a table was opened twice")
	}
}

func TestTableOfAnotherTree(t *testing.T) {
	table := filepath.Join(t.TempDir(), "inodes")
	one, other := worktreetest.New(nil), worktreetest.New(map[string]worktreetest.File{"x": {}})
	if err := openTable(t, one, table).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(table, other, Options{Root: other.Root}); !errors.Is(err, inode.ErrTable) {
		t.Errorf("open: got %v, want inode.ErrTable", err)
	}
}

// A full disk causes an error for the call that needs new nodes, not a SIGBUS. Nodes that were returned stay valid.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	files := make(map[string]worktreetest.File)
	for i := range 40_000 {
		files[fmt.Sprintf("d%03d/f%d", i/200, i)] = worktreetest.File{}
	}
	tree := openTable(t, worktreetest.New(files), filepath.Join(dir, "inodes"))
	before := make(map[string]Node)
	err := walk(tree, Root, func(path string, a Attr) { before[path] = a.Node })
	if !errors.Is(err, unix.ENOSPC) || len(before) < 10_000 {
		t.Fatalf("walk on a full disk: got %d paths, %v, want ENOSPC", len(before), err)
	}
	for path, n := range before {
		if a := stat(t, tree, path); a.Node != n {
			t.Errorf("%s: got node %d, want %d", path, a.Node, n)
		}
	}
}
