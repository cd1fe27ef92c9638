package serving

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// HideSecrets overwrites the secrets in the arguments and the environment of this process. Otherwise /proc would show
// these secrets to the command ps and to child processes as long as the process runs. os.Args and os.Environ keep their
// values.
func HideSecrets() {
	given := func(s string) bool {
		from, to := Hidden(s)
		return from < to
	}
	if !slices.ContainsFunc(os.Args, given) && !slices.ContainsFunc(os.Environ(), given) {
		return
	}
	args := make([]string, len(os.Args))
	for i, arg := range os.Args {
		args[i] = strings.Clone(arg) // os.Args points to the memory that is overwritten; os.Environ has returned a copy
	}
	os.Args = args
	// Log the error but continue, because it only means that the secrets stay visible.
	if err := overwriteSecrets(); err != nil {
		fmt.Fprintf(os.Stderr, "artifactfs: hide secrets from the process list: %v\n", err)
	}
}

// overwriteSecrets replaces the secrets in the argument area by asterisks, through /proc/self/mem.
func overwriteSecrets() error {
	start, end, err := argumentArea()
	if err != nil {
		return err
	}
	mem, err := proc.Self.Memory(os.O_RDWR)
	if err != nil {
		return err
	}
	defer mem.Close()
	area := make([]byte, end-start)
	if _, err := mem.ReadAt(area, start); err != nil {
		return err
	}
	// The area consists of strings that each end in a NUL byte.
	at := start
	for s := range strings.SplitSeq(string(area), "\x00") {
		if from, to := Hidden(s); from < to {
			if _, err := mem.WriteAt(bytes.Repeat([]byte{'*'}, to-from), at+int64(from)); err != nil {
				return err
			}
		}
		at += int64(len(s)) + 1
	}
	return nil
}

// Hidden returns the range of bytes that must be hidden in s, which is an argument or an environment variable in the
// form NAME=VALUE. For a variable that contains a token, the range is the value. For an http URL, it is USER:PASSWORD,
// because a token may be in the place of the user. For any other URL, it is the password.
func Hidden(s string) (from, to int) {
	for _, name := range []string{cli.TokenVariable, cli.SessionTokenVariable, cli.ServerTokenVariable,
		cli.ForgeTokenVariable} {
		if strings.HasPrefix(s, name+"=") {
			return len(name) + 1, len(s)
		}
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return 0, 0
	}
	from = len(scheme) + len("://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	to = from + max(0, strings.LastIndexByte(rest, '@'))
	if scheme = strings.ToLower(scheme); strings.HasSuffix(scheme, "http") || strings.HasSuffix(scheme, "https") {
		return from, to
	}
	colon := strings.IndexByte(s[from:to], ':')
	if colon < 0 {
		return 0, 0
	}
	return from + colon + 1, to
}

// argumentArea returns the addresses between which the kernel has stored the arguments, followed by the environment.
func argumentArea() (start, end int64, err error) {
	stat, err := proc.Self.Stat()
	if err == nil && (stat.ArgStart <= 0 || stat.EnvEnd < stat.ArgStart) {
		err = fmt.Errorf("read stat of this process: invalid argument area from %d to %d", stat.ArgStart, stat.EnvEnd)
	}
	return stat.ArgStart, stat.EnvEnd, err
}

// KeepMemory makes the process undumpable: its memory, which contains secrets, then does not appear in core files, and
// other processes of the user cannot read it.
func KeepMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return nil
}
