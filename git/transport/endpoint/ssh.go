package endpoint

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// SSHProgram describes how ssh is run. The field shell, if set, is a command that the shell runs. Otherwise the field
// path is the program, which is run directly.
type SSHProgram struct {
	Env         Environment // environment of the user who has configured the program
	shell, path string
	variant     sshVariant
}

// sshVariant is the kind of ssh program, which determines the options that it accepts (ssh.variant in git-config).
type sshVariant uint8

const (
	openSSH sshVariant = iota
	simpleSSH
	putty
	tortoise
)

// NewSSHProgram returns the ssh program that the user has configured. It looks in the same places and in the same order
// as git.
func NewSSHProgram(s Settings, env Environment) SSHProgram {
	p := SSHProgram{Env: env}
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
	// Without a setting, guess the variant from the name of the program, as git does.
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

// Options returns the arguments that precede the host on the command line. Only OpenSSH can send the variable
// GIT_PROTOCOL, which requests protocol version 2.
func (p SSHProgram) Options(port string, connect time.Duration) []string {
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
	case simpleSSH: // this variant accepts no options
	}
	return args
}

// Argv returns the command line: the program followed by args.
func (p SSHProgram) Argv(args []string) []string {
	if p.shell != "" {
		// The shell passes the arguments to the program unchanged through "$@".
		return append([]string{"sh", "-c", p.shell + ` "$@"`, p.shell}, args...)
	}
	return append([]string{p.path}, args...)
}

// Reaches reports whether the host to which ssh would connect accepts connections. It returns false if the answer is
// unknown, for example behind a jump host.
func (p SSHProgram) Reaches(ctx context.Context, port, host string, connect time.Duration) bool {
	if p.variant != openSSH {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, connect)
	defer cancel()
	// ssh -G prints the configuration that applies to a host, without connecting.
	args := []string{"-G"}
	if port != "" {
		args = append(args, "-p", port)
	}
	argv := p.Argv(append(args, host))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "/", p.Env.ForRepository()
	out, err := cmd.Output()
	if err != nil {
		return false
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[key] = value
	}
	// The host is reached through a proxy or is unknown, so the attempt to connect directly would prove nothing.
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

// seconds returns the duration d in seconds, rounded up, as text for the options of other programs.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
