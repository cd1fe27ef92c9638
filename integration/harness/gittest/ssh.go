package gittest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ServeSSH starts a server for ssh:// that runs a real sshd for each connection. The sshd accepts one key and runs only
// git, as the user of this process. Paths in URLs are relative to Root. command is the value that clients must have in
// GIT_SSH_COMMAND.
func ServeSSH(o ServerOptions) (s *Server, command string, err error) {
	sshd, err := findSSHD()
	if err != nil {
		return nil, "", err
	}
	if s, err = newServer("ssh", o); err != nil {
		return nil, "", err
	}
	heard := newRecords(s)
	s.log.renew = heard.renew
	s.shutdown = append(s.shutdown, s.sweep, heard.close)
	if command, err = s.prepareSSH(); err == nil {
		s.link.dial = func(conn int) (net.Conn, error) {
			cmd := exec.Command(sshd, "-i", "-e", "-f", s.sshFile("config"), "-o", s.sessionEnv(conn))
			cmd.Dir, cmd.Env = s.root, s.env()
			return s.spawn(conn, cmd)
		}
		err = s.open(o.Addr)
	}
	if err != nil {
		s.Close()
		return nil, "", err
	}
	return s, command, nil
}

func findSSHD() (string, error) {
	if path, err := exec.LookPath("sshd"); err == nil {
		return filepath.Abs(path) // sshd executes itself again, which requires an absolute path
	}
	const usual = "/usr/sbin/sshd"
	if _, err := os.Stat(usual); err != nil {
		return "", fmt.Errorf("find sshd: %w", err)
	}
	return usual, nil
}

func (s *Server) sshFile(name string) string { return filepath.Join(s.home, name) }

// prepareSSH creates the keys and the configuration of sshd, and returns the ssh command for clients.
func (s *Server) prepareSSH() (string, error) {
	if os.Geteuid() == 0 {
		// sshd restricts its unprivileged process to this directory. Usually a service of the distribution creates it.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return "", fmt.Errorf("prepare sshd: %w", err)
		}
	}
	for _, key := range []string{"host", "client"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f",
			s.sshFile(key)).CombinedOutput(); err != nil {
			return "", fmt.Errorf("make ssh key: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	host, err := os.ReadFile(s.sshFile("host.pub"))
	if err != nil {
		return "", fmt.Errorf("prepare sshd: %w", err)
	}
	config := strings.Join([]string{
		"HostKey " + s.sshFile("host"),
		"AuthorizedKeysFile " + s.sshFile("client.pub"),
		"ForceCommand /bin/sh " + s.sshFile("session"),
		"AcceptEnv GIT_PROTOCOL",
		"PermitRootLogin yes",
		"PasswordAuthentication no",
		"KbdInteractiveAuthentication no",
		"UsePAM no",
		"StrictModes no", // sshd would refuse the keys, because all users can write to /tmp
		"PidFile none",
		"UseDNS no",
		"LogLevel ERROR",
	}, "\n") + "\n"
	for name, content := range map[string]string{"config": config, "session": session,
		"known_hosts": "* " + string(host)} {
		if err := os.WriteFile(s.sshFile(name), []byte(content), 0o600); err != nil {
			return "", fmt.Errorf("prepare sshd: %w", err)
		}
	}
	if err := os.Mkdir(s.sshFile("sessions"), 0o700); err != nil {
		return "", fmt.Errorf("prepare sshd: %w", err)
	}
	return "ssh -F /dev/null -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityAgent=none -o LogLevel=ERROR -o StrictHostKeyChecking=yes" +
			" -o GlobalKnownHostsFile=/dev/null -o UserKnownHostsFile=" + s.sshFile("known_hosts") + " -i " +
			s.sshFile("client"),
		nil
}

// sessionEnv returns the option of sshd that sets environment variables for git and for the session script. They have
// the same values as for the other servers. They cannot be inherited, because sshd starts a session with an empty
// environment.
func (s *Server) sessionEnv(conn int) string {
	option := "SetEnv="
	for _, v := range append(s.env(), "GITTEST_ROOT="+s.root, fmt.Sprintf("GITTEST_CONN=%04d", conn)) {
		option += ` "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
	}
	return option
}

// session is a shell script that sshd runs instead of the client's command. It runs the same command with the path
// below the root, and records all bytes before it passes them on: the recording is the standard output of tee, which
// tee writes first. The session ends when git ends, even if the client sends more bytes, so the process that reads from
// the client runs in the background.
const session = `
eval "set -- $SSH_ORIGINAL_COMMAND"
case $1 in
git-upload-pack | git-receive-pack | git-upload-archive) ;;
*) echo "only git is served here" >&2; exit 128 ;;
esac
dir=$(mktemp -d "$HOME/sessions/$GITTEST_CONN-XXXXXX") && mkfifo "$dir/in" || exit 128
printf '%s\n' "$2" "$GIT_PROTOCOL" "$1" >"$dir/about"
exec 3<&0
tee "$dir/in" <&3 >"$dir/asked" 2>/dev/null &
exec 3<&- </dev/null
{ git "${1#git-}" "$GITTEST_ROOT/${2#/}" <"$dir/in"; echo $? >"$dir/status"; } | tee /dev/fd/4 4>&1 >"$dir/answered" | cat
status=$(cat "$dir/status")
: >"$dir/ended"
exit "$status"
`

// sweep kills the remaining processes of sshd. Its sessions are in separate process groups and notice the end of the
// connection only when they read or write.
func (s *Server) sweep() {
	const patience = 10 * time.Second
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left := processesOf(s.home)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// processesOf returns the IDs of the processes whose variable HOME is the home directory of a server. Only processes of
// this server have this value.
func processesOf(home string) []int {
	var pids []int
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, d := range dirs {
		var pid int
		if _, err := fmt.Sscan(d.Name(), &pid); err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", d.Name(), "environ"))
		if errors.Is(err, os.ErrNotExist) || err != nil {
			continue // the process has ended, or belongs to another user
		}
		if bytes.Contains(append([]byte{0}, env...), []byte("\x00HOME="+home+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}
