package transport

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/transport/endpoint"
)

// sshProgram is how to run ssh. shell, if set, is a command for the shell; otherwise path is run
// directly.
type sshProgram struct {
	env         Environment
	shell, path string
	variant     sshVariant
}

// sshVariant is the set of options that a program supports (ssh.variant in git-config).
type sshVariant uint8

const (
	openSSH sshVariant = iota
	simpleSSH
	putty
	tortoise
)

// newSSHProgram returns the ssh program of the user, chosen in git's order.
func newSSHProgram(s endpoint.Settings, env Environment) sshProgram {
	p := sshProgram{env: env}
	switch {
	// The order is that of git's connect.c: GIT_SSH_COMMAND, core.sshCommand, GIT_SSH, ssh.
	case env.Get("GIT_SSH_COMMAND") != "":
		p.shell = env.Get("GIT_SSH_COMMAND")
	case s.Value("core.sshcommand") != "":
		p.shell = s.Value("core.sshcommand")
	case env.Get("GIT_SSH") != "":
		p.path = env.Get("GIT_SSH")
	default:
		p.path = "ssh"
	}
	name := env.Get("GIT_SSH_VARIANT")
	if name == "" {
		name = s.Value("ssh.variant")
	}
	// Without a setting the variant is guessed from the name of the program.
	if name == "" || name == "auto" {
		first, _, _ := strings.Cut(p.shell+p.path, " ")
		name = strings.TrimSuffix(strings.ToLower(filepath.Base(first)), ".exe")
	}
	switch name {
	case "simple":
		p.variant = simpleSSH
	case "plink", "putty":
		p.variant = putty
	case "tortoiseplink":
		p.variant = tortoise
	}
	return p
}

// options returns the arguments before the host. Only OpenSSH can pass the protocol version on.
func (p sshProgram) options(port string, connect time.Duration) []string {
	var args []string
	switch p.variant {
	case openSSH:
		args = []string{"-o", "SendEnv=GIT_PROTOCOL", "-o", "ConnectTimeout=" + seconds(connect)}
		if port != "" {
			args = append(args, "-p", port)
		}
	case putty, tortoise:
		if p.variant == tortoise {
			args = []string{"-batch"}
		}
		if port != "" {
			args = append(args, "-P", port)
		}
	case simpleSSH: // takes none
	}
	return args
}

// argv returns the program with its arguments.
func (p sshProgram) argv(args []string) []string {
	if p.shell != "" {
		// The shell passes the arguments on unchanged by "$@".
		return append([]string{"sh", "-c", p.shell + ` "$@"`, p.shell}, args...)
	}
	return append([]string{p.path}, args...)
}

// reaches reports whether the host that ssh would connect to accepts connections. It returns false
// if this cannot be known, as behind a jump host.
func (p sshProgram) reaches(ctx context.Context, port, host string, connect time.Duration) bool {
	if p.variant != openSSH {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, connect)
	defer cancel()
	// ssh -G prints the configuration for a host without connecting.
	args := []string{"-G"}
	if port != "" {
		args = append(args, "-p", port)
	}
	argv := p.argv(append(args, host))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "/", p.env.ForRepository()
	out, err := cmd.Output()
	if err != nil {
		return false
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[key] = value
	}
	// Behind a proxy the host need not be reachable from this machine.
	if found["proxycommand"] != "" || found["proxyjump"] != "" || found["hostname"] == "" {
		return false
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(found["hostname"], found["port"]))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// seconds rounds up, for options of other programs.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
