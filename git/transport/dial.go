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

	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// service is the git program that runs on the server: upload-pack for fetches, receive-pack for pushes.
type service string

const (
	uploadPack  service = "git-upload-pack"
	receivePack service = "git-receive-pack"
)

// path returns the URL path of the service in smart HTTP, below the repository's URL.
func (s service) path() string { return "/" + string(s) }

// connector opens connections to a server, either over TCP or through a child process (ssh, or git's server program on
// this host). The carriers of a Remote use the connector. Its fields do not change, so it needs no lock.
type connector struct {
	opts  *Options
	stats *counters
	tasks *tasks // each child process is a task until it has exited
	url   string // URL of the remote
}

// program returns the command that starts a service: Options.UploadPack if it is set and the service is upload-pack,
// otherwise the name of git's program after the prefix, such as "git " or "git-".
func (n *connector) program(s service, prefix string) string {
	if s == uploadPack && n.opts.UploadPack != "" {
		return n.opts.UploadPack
	}
	return prefix + strings.TrimPrefix(string(s), "git-")
}

// dialLocal returns a dial function that runs upload-pack or receive-pack on a repository of this host. The child
// process serves no other client, so dialLocal enables features that on another host only the server's administrator
// could enable: filters, object-info, and a repository that another user owns. (git's safe.directory protects users who
// enter such a repository by accident; here the user has named the repository.)
func (n *connector) dialLocal(path string, s service) dial {
	verdict := func(_ context.Context, p *process, err error) error { return localVerdict(path, s, p, err) }
	program := n.program(s, "git ")
	return func(ctx context.Context) (duplex, error) {
		repo, err := n.repository(ctx, path, s)
		if err != nil {
			return nil, err
		}
		cmd := exec.Command("sh", "-c", program+` "$1"`, "sh", repo)
		cmd.Env = append(n.opts.Env.ForRepository(),
			"GIT_PROTOCOL=version=2", "GIT_CONFIG_COUNT=3",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
			"GIT_CONFIG_KEY_1=uploadpack.allowFilter", "GIT_CONFIG_VALUE_1=true",
			"GIT_CONFIG_KEY_2=transfer.advertiseObjectInfo", "GIT_CONFIG_VALUE_2=true")
		if s == uploadPack {
			cmd.WaitDelay = readGrace
		}
		return n.startProcess(cmd, verdict)
	}
}

// newLocal returns the carrier for the repository at path, which is on this host.
func (r *Remote) newLocal(path string) *lanes {
	s := r.newLanes(func(s service) dial { return r.connector.dialLocal(path, s) })
	s.local = path
	// The bundle may change, which is checked for each new connection. Therefore a connection serves only one exchange.
	s.once = r.opts.BundleDir != nil && isBundle(path)
	return s
}

// isPartial reports whether the repository at path on this host is a partial clone. The repositories of sessions are
// partial clones.
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

// localVerdict returns the error to report if the child process for the repository at path ended before its first
// answer.
func localVerdict(path string, s service, p *process, err error) error {
	_, statErr := os.Stat(path)
	switch {
	case errors.Is(err, ErrNoV2), errors.Is(err, errProtocol):
		return err
	case errors.Is(statErr, fs.ErrPermission):
		return fmt.Errorf("%w%s", ErrForbidden, p.lastOutput())
	case statErr != nil || p.cmd.ProcessState.ExitCode() == 128:
		// git exits with 128 after errors such as "not a git repository"
		return fmt.Errorf("%w%s", ErrNotFound, p.lastOutput())
	}
	return fmt.Errorf("%w: %s ended with %v%s", ErrUnreachable, s, p.cmd.ProcessState, p.lastOutput())
}

// dialSSH returns a dial function that runs upload-pack or receive-pack on another host. The login shell of that host
// parses the command, so the path is quoted.
func (n *connector) dialSSH(ep *endpoint.URL, ssh endpoint.SSHProgram, s service) dial {
	host := ep.Host
	if ep.User != "" {
		host = ep.User + "@" + host
	}
	program := n.program(s, "git-")
	argv := ssh.Argv(append(ssh.Options(ep.Port, n.opts.Connect), host,
		program+" '"+strings.ReplaceAll(ep.Path, "'", `'\''`)+"'"))
	verdict := func(ctx context.Context, p *process, err error) error {
		var said remoteError
		switch {
		case errors.Is(err, ErrNoV2), errors.Is(err, errProtocol):
			return err
		case errors.As(err, &said):
			return fmt.Errorf("%w: %w", ErrNotFound, err)
		case p.cmd.ProcessState.ExitCode() != 255:
			// ssh itself fails with status 255; any other status comes from the remote shell
			return fmt.Errorf("%w%s", ErrNotFound, p.lastOutput())
		case ssh.Reaches(ctx, ep.Port, host, n.opts.Connect):
			return fmt.Errorf("%w%s", ErrAuth, p.lastOutput())
		}
		return transient{error: fmt.Errorf("%w%s", ErrUnreachable, p.lastOutput())}
	}
	return func(context.Context) (duplex, error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(ssh.Env.ForRepository(), "GIT_PROTOCOL=version=2")
		return n.startProcess(cmd, verdict)
	}
}

// dialGit returns a dial function that connects to a git daemon.
func (n *connector) dialGit(ep *endpoint.URL, service service) dial {
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
			return nil, errors.New("repository path is too long for a git:// request")
		}
		d := net.Dialer{Timeout: n.opts.Connect, Control: n.sendAgainSoon}
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(ep.Host, port))
		if err != nil {
			return nil, unreachable(err)
		}
		s := &socket{Conn: c, stats: n.stats}
		if _, err := s.Write(pktline.Append(nil, request)); err != nil {
			c.Close()
			return nil, fault(err)
		}
		return s, nil
	}
}

// sendAgainSoon makes the kernel retransmit lost segments every second. By default the pauses between retransmissions
// double up to two minutes. With the shorter pauses, a connection continues soon after an interruption of the network
// has ended. If no acknowledgement arrives for the duration Options.Stall, the kernel drops the connection. Linux has
// this option since 6.15 (TCP_RTO_MAX_MS in include/uapi/linux/tcp.h).
func (n *connector) sendAgainSoon(_, _ string, c syscall.RawConn) error {
	const rtoMax, most = 44, 1000 // rtoMax is the option TCP_RTO_MAX_MS, and most is the value for it, in milliseconds
	return c.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, rtoMax, most) == nil {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(n.opts.Stall.Milliseconds()))
		}
	})
}

// socket is a duplex over a TCP connection. It counts the transferred bytes.
type socket struct {
	net.Conn
	stats *counters
	spare bool // whether OpenSpare has opened the connection, before it was needed
}

// Read reads from the connection and counts the bytes that it has read.
func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.stats.in.Add(int64(n))
	return n, err
}

// Write writes to the connection and counts the bytes that it has written.
func (s *socket) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.stats.out.Add(int64(n))
	return n, err
}

// abort closes the connection.
func (s *socket) abort() { s.Close() }

// explain returns the cause of err. If the server has sent an error message, the result is ErrNotFound, because a git
// daemon sends the same message and closes the connection for a repository that does not exist and for a repository
// that it does not serve. explain returns other errors unchanged, or as transport faults.
func (s *socket) explain(_ context.Context, err error) error {
	var said remoteError
	if errors.As(err, &said) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return streamFault(err)
}

// unreachable classifies the error of a failed dial. The error is transient, unless the host name does not exist: a
// name that is missing now will still be missing at the next attempt, a few seconds later.
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
