package control

import (
	"bytes"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Environment is a list of environment variables, NAME=value. The values may be secrets, so an Environment is not shown
// when it is printed, marshaled or logged.
type Environment []string

func (Environment) String() string               { return "(hidden)" }
func (Environment) GoString() string             { return "(hidden)" }
func (Environment) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// Encode returns the environment in the format of /proc/PID/environ: each variable followed by a zero byte. It returns
// nil if there are no variables.
func (e Environment) Encode() []byte {
	var b bytes.Buffer
	for _, v := range e {
		b.WriteString(v + "\x00")
	}
	return b.Bytes()
}

// ForPrograms returns the environment for programs that the user has configured, such as filters, and for git. It
// leaves out the variables of artifactfs. They are for the program that makes tokens for the mount, and may be secrets
// that other programs must not see. If no variable is left, it returns nil.
func (e Environment) ForPrograms() Environment {
	var kept Environment
	for _, v := range e {
		if !strings.HasPrefix(v, ownPrefix) {
			kept = append(kept, v)
		}
	}
	return kept
}

// ownPrefix is the prefix of the names of the variables of artifactfs.
const ownPrefix = "ARTIFACTFS_"

// DecodeEnvironment returns the environment that Encode has encoded.
func DecodeEnvironment(text []byte) Environment {
	var e Environment
	for v := range bytes.SplitSeq(bytes.TrimSuffix(text, []byte{0}), []byte{0}) {
		if len(v) > 0 {
			e = append(e, string(v))
		}
	}
	return e
}

// CallerUmask returns the umask of this process, for MountRequest.Umask. It returns nil if the kernel does not report
// it.
func CallerUmask() *uint32 {
	s, err := proc.Self.Status()
	if err != nil {
		return nil
	}
	return s.Umask
}

// maxEnvironment is the maximum size, in bytes, of an environment in a request, so that the request line does not
// exceed its limit.
const maxEnvironment = 512 << 10

// CallerEnvironment returns the environment of this process, for MountRequest.Environment. It leaves out variables that
// describe the process itself. Relative paths of programs and files are made absolute, because the daemon has another
// working directory.
func CallerEnvironment() Environment {
	e := Environment{}
	size := 0
	dir, _ := os.Getwd()
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case "", "_", "PWD", "OLDPWD", "SHLVL":
			continue
		case "GIT_ASKPASS", "SSH_ASKPASS", "GIT_SSH", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_SSL_CAINFO",
			"GIT_SSL_CERT", "GIT_SSL_KEY":
			if dir != "" && strings.Contains(value, "/") && !strings.HasPrefix(value, "/") {
				v = name + "=" + dir + "/" + value
			}
		}
		if size += len(v) + 1; strings.HasPrefix(name, ownPrefix) || size > maxEnvironment || !utf8.ValidString(name) {
			size -= len(v) + 1
			continue
		}
		e = append(e, v)
	}
	return e
}
