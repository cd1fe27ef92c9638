package promisor

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestOwnGitFindsNoMissingBlobs checks that a git command that artifactfs runs does not find a blob that exists only on
// the remote, and that the same command of another program finds it.
func TestOwnGitFindsNoMissingBlobs(t *testing.T) {
	for shell, want := range map[string]kind{
		"echo $$; exec git cat-file --batch":                            excluded,
		"exec 3<&0; git cat-file --batch <&3 & echo $!; wait; echo end": gitCommand,
	} {
		dir := t.TempDir()
		cmd := exec.Command("sh", "-c", "git init -q --bare "+dir+" && "+shell)
		cmd.Env = append(os.Environ(), "GIT_DIR="+dir)
		in, inErr := cmd.StdinPipe()
		out, outErr := cmd.StdoutPipe()
		if inErr != nil || outErr != nil || cmd.Start() != nil {
			t.Fatal(inErr, outErr)
		}
		lines := bufio.NewReader(out)
		pid, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, "nothing\n"); err != nil {
			t.Fatal(err)
		}
		// After this answer, git runs.
		if answer, err := lines.ReadString('\n'); err != nil || answer != "nothing missing\n" {
			t.Fatalf("answer of git: %q, %v", answer, err)
		}
		id, err := strconv.Atoi(strings.TrimSpace(pid))
		if err != nil {
			t.Fatal(err)
		}
		if got := new(existence).kindOf(uint32(id)); got != want {
			t.Errorf("kind of the process of %q: got %d, want %d", shell, got, want)
		}
		in.Close()
		if _, err := io.Copy(io.Discard, lines); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestKindByArgs(t *testing.T) {
	for command, want := range map[string]kind{
		"git diff --name-only": comparison, "git diff --raw HEAD -- dir": comparison, "/bin/git -C x diff -s": comparison,
		"git diff": gitCommand, "git diff --stat": gitCommand, "git diff -- --raw": gitCommand,
		"git diff --cached --name-only": gitCommand, "git diff-index --raw HEAD": gitCommand,
		"git diff --no-index --quiet a b": gitCommand,
		"git commit -m --raw":             treeWriter, "git fsck": excluded, "git lfs ls-files": program, "diff --raw": program,
	} {
		if got := kindByArgs(strings.Fields(command)); got != want {
			t.Errorf("command %q: got %d, want %d", command, got, want)
		}
	}
}
