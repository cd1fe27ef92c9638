package transport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/pktline"
	"github.com/artifactfs/artifactfs/transport/endpoint"
)

// service is a program of git on the server's side.
type service string

const (
	uploadPack  service = "git-upload-pack"
	receivePack service = "git-receive-pack"
)

// path is the path of the service in smart HTTP.
func (s service) path() string { return "/" + string(s) }

// program returns the command that starts a service: the user's where one is set, else git's name
// after this prefix.
func (r *Remote) program(s service, prefix string) string {
	if s == uploadPack && r.opts.UploadPack != "" {
		return r.opts.UploadPack
	}
	return prefix + strings.TrimPrefix(string(s), "git-")
}

// dialLocal runs upload-pack, or receive-pack, on a repository of this host. It is our own process
// and serves only us, so it may do what a server's administrator would have to allow: filters,
// sizes, and a repository of another user (git's safe.directory protects from repositories that a
// user enters by accident; this one was named).
func (r *Remote) dialLocal(path string, s service) dial {
	verdict := func(_ context.Context, p *process, err error) error { return localVerdict(path, s, p, err) }
	program := r.program(s, "git ")
	return func(context.Context) (duplex, error) {
		cmd := exec.Command("sh", "-c", program+` "$1"`, "sh", path)
		cmd.Env = append(r.opts.Env.ForRepository(),
			"GIT_PROTOCOL=version=2", "GIT_CONFIG_COUNT=3",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
			"GIT_CONFIG_KEY_1=uploadpack.allowFilter", "GIT_CONFIG_VALUE_1=true",
			"GIT_CONFIG_KEY_2=transfer.advertiseObjectInfo", "GIT_CONFIG_VALUE_2=true")
		return r.startProcess(cmd, verdict)
	}
}

// newLocal returns the carrier for a repository of this host.
func (r *Remote) newLocal(path string) *lanes {
	s := r.newLanes(func(s service) dial { return r.dialLocal(path, s) })
	s.local = path
	return s
}

// isPartial reports whether a repository of this host is a partial clone, as those of sessions are.
func isPartial(ctx context.Context, path string) bool {
	for _, dir := range []string{path, filepath.Join(path, ".git")} {
		out, err := Environment(nil).Git(ctx, "config", "--file", filepath.Join(dir, "config"), "--get-regexp",
			`^(extensions\.partialclone|remote\..*\.promisor)$`).Output()
		if err == nil && len(out) > 0 {
			return true
		}
	}
	return false
}

// localVerdict returns the error for a child that ended before its first answer.
func localVerdict(path string, s service, p *process, err error) error {
	_, statErr := os.Stat(path)
	switch {
	case errors.Is(err, ErrNoV2), errors.Is(err, errProtocol):
		return err
	case errors.Is(statErr, fs.ErrPermission):
		return fmt.Errorf("%w%s", ErrForbidden, p.lastOutput())
	case statErr != nil || p.cmd.ProcessState.ExitCode() == 128: // git's "not a git repository" and similar
		return fmt.Errorf("%w%s", ErrNotFound, p.lastOutput())
	}
	return fmt.Errorf("%w: %s ended with %v%s", ErrUnreachable, s, p.cmd.ProcessState, p.lastOutput())
}

// dialSSH runs upload-pack, or receive-pack, on another host. Arguments are quoted for the login
// shell there.
func (r *Remote) dialSSH(ep *endpoint.URL, ssh sshProgram, s service) dial {
	host := ep.Host
	if ep.User != "" {
		host = ep.User + "@" + host
	}
	program := r.program(s, "git-")
	argv := ssh.argv(append(ssh.options(ep.Port, r.opts.Connect), host, program+" '"+strings.ReplaceAll(ep.Path, "'", `'\''`)+"'"))
	verdict := func(ctx context.Context, p *process, err error) error {
		var said remoteError
		switch {
		case errors.Is(err, ErrNoV2), errors.Is(err, errProtocol):
			return err
		case errors.As(err, &said):
			return fmt.Errorf("%w: %w", ErrNotFound, err)
		case p.cmd.ProcessState.ExitCode() != 255: // the remote shell's status: no such command, or no such repository
			return fmt.Errorf("%w%s", ErrNotFound, p.lastOutput())
		case ssh.reaches(ctx, ep.Port, host, r.opts.Connect):
			return fmt.Errorf("%w%s", ErrAuth, p.lastOutput())
		}
		return transient{error: fmt.Errorf("%w%s", ErrUnreachable, p.lastOutput())}
	}
	return func(context.Context) (duplex, error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(ssh.env.ForRepository(), "GIT_PROTOCOL=version=2")
		return r.startProcess(cmd, verdict)
	}
}

// dialGit connects to a git daemon.
func (r *Remote) dialGit(ep *endpoint.URL, service service) dial {
	port := ep.Port
	if port == "" {
		port = "9418"
	}
	host := ep.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if ep.Port != "" {
		host += ":" + ep.Port
	}
	request := fmt.Sprintf("%s %s\x00host=%s\x00\x00version=2\x00", service, ep.Path, host)
	return func(ctx context.Context) (duplex, error) {
		if len(request) > pktline.MaxData {
			return nil, errors.New("path is too long")
		}
		d := net.Dialer{Timeout: r.opts.Connect, Control: r.sendAgainSoon}
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(ep.Host, port))
		if err != nil {
			return nil, unreachable(err)
		}
		s := &socket{Conn: c, stats: &r.stats}
		if _, err := s.Write(pktline.Append(nil, request)); err != nil {
			c.Close()
			return nil, fault(err)
		}
		return s, nil
	}
}

// sendAgainSoon makes the kernel retransmit lost segments each second, and not after pauses that
// double up to two minutes: connections continue as soon as the network does. The kernel gives up
// when a stall would end the exchange. The option exists since Linux 6.15 (TCP_RTO_MAX_MS of
// include/uapi/linux/tcp.h).
func (r *Remote) sendAgainSoon(_, _ string, c syscall.RawConn) error {
	const rtoMax, most = 44, 1000 // milliseconds
	return c.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, rtoMax, most) == nil {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(r.opts.Stall.Milliseconds()))
		}
	})
}

// socket is a duplex over TCP.
type socket struct {
	net.Conn
	stats *counters
	spare bool // opened ahead of need
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.stats.in.Add(int64(n))
	return n, err
}

func (s *socket) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.stats.out.Add(int64(n))
	return n, err
}

func (s *socket) abort() { s.Close() }

// explain returns err as it is, or ErrNotFound: a git daemon hangs up after the same message for a
// repository that does not exist and one that it does not serve.
func (s *socket) explain(_ context.Context, err error) error {
	var said remoteError
	if errors.As(err, &said) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return streamFault(err)
}

// unreachable classifies a failed dial: a name that does not exist will not exist in a second
// either.
func unreachable(err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fault(err)
}
