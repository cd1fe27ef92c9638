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

// HideSecrets writes over the secrets this process was given: /proc shows arguments and environment for as long as it runs,
// to ps and to whatever it starts. What the program itself sees of them stays as it was.
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
		args[i] = strings.Clone(arg) // it lies in the memory that is written to; the environment is a copy already
	}
	os.Args = args
	if err := overwriteSecrets(); err != nil { // all works without, only less discreetly
		fmt.Fprintf(os.Stderr, "artifactfs: hide secrets from the process list: %v\n", err)
	}
}

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

// Hidden returns the part of an argument, or of a variable with its name, that is not to be seen: the token's value; of an http
// URL all of USER:PASSWORD, since a token may stand for the user; of other URLs the password.
func Hidden(s string) (from, to int) {
	for _, name := range []string{cli.TokenVariable, cli.SessionTokenVariable} {
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

// argumentArea returns the addresses between which the kernel has put arguments and environment, one behind the other.
func argumentArea() (start, end int64, err error) {
	stat, err := proc.Self.Stat()
	if err == nil && (stat.ArgStart <= 0 || stat.EnvEnd < stat.ArgStart) {
		err = fmt.Errorf("read stat of this process: arguments from %d to %d", stat.ArgStart, stat.EnvEnd)
	}
	return stat.ArgStart, stat.EnvEnd, err
}

// KeepMemory keeps what is in this process's memory, secrets too, out of core files and from other processes of its user.
func KeepMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return nil
}
