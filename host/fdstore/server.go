package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/internal/signal"
)

// Server keeps copies of the descriptors of any number of daemons.
type Server struct {
	listener *net.UnixListener
	log      *zap.Logger

	mu      sync.Mutex
	daemons map[string]*daemon // daemons by name
}

// daemon is the state that a Server has for one name of daemons. Its fields are protected by Server.mu.
type daemon struct {
	files map[string]int // descriptors by name
	// fresh contains the names of the descriptors that were stored through the present connection.
	fresh map[string]bool
	conn  *keeper.Conn // present connection; nil if there is none
	left  time.Time    // time at which the last connection ended
	life  lifeline     // pipe of the daemon that was connected last; 0 if no daemon was connected
	// ended is closed when no process of the daemon that was connected last runs.
	ended chan struct{}
	// waiting contains the connections of the daemons that wait, in the order of their arrival.
	waiting []*keeper.Conn
	changed chan struct{} // closed, and replaced, when a field above has changed for which a daemon may wait
}

// newDaemon returns the state for a name under which no daemon has connected.
func newDaemon() *daemon {
	d := &daemon{files: map[string]int{}, ended: make(chan struct{}), changed: make(chan struct{})}
	close(d.ended)
	return d
}

// wake makes the daemons that wait for the descriptors examine the state again.
func (d *daemon) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// removeWaiting removes the connection of a daemon from those that wait for the descriptors.
func (d *daemon) removeWaiting(conn *keeper.Conn) {
	d.waiting = slices.DeleteFunc(d.waiting, func(c *keeper.Conn) bool { return c == conn })
	d.wake()
}

// lifeline identifies the pipe of a daemon by its inode number, which is unique while the pipe exists.
type lifeline uint64

// Listen creates the socket of a Server. It removes a socket that a dead process has left, and returns ErrInUse if
// another process answers. Only processes with the caller's user ID can connect.
func Listen(socket string, log *zap.Logger) (*Server, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, err
	}
	if c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"}); err == nil {
		c.Close()
		return nil, ErrInUse
	}
	// The socket gets its name when it has its mode and listens, so that no other user can connect before that, and no
	// daemon is refused.
	temporary := socket + "." + strconv.Itoa(os.Getpid())
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: temporary, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(temporary, 0o600)
	if err == nil {
		err = os.Rename(temporary, socket)
	}
	if err != nil {
		l.Close()
		os.Remove(temporary)
		return nil, err
	}
	return &Server{listener: l, log: log, daemons: map[string]*daemon{}}, nil
}

// Serve accepts connections of daemons until ctx ends. The descriptors that it keeps stay open until the process ends,
// because they keep the mounts of the daemons alive.
func (s *Server) Serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	for {
		c, err := s.listener.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.log.Warn("accept connection", zap.Error(err)) // such as too many open files
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			continue
		}
		go s.serveConn(c)
	}
}

// serveConn handles the connection u until it ends.
func (s *Server) serveConn(u *net.UnixConn) {
	conn, err := s.open(u)
	if err != nil {
		s.log.Warn("refuse connection", zap.Error(err))
		return
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(helloTime))
	m, fds, err := conn.Receive()
	conn.SetReadDeadline(time.Time{})
	switch name := m[keyDaemon]; {
	case err != nil:
		if !errors.Is(err, io.EOF) { // Listen of another process connects and sends nothing
			s.log.Warn("read first message", zap.Error(err))
		}
	case m[keyList] != "":
		keeper.CloseAll(fds)
		s.list(conn)
	case name == "" || len(fds) != 1:
		keeper.CloseAll(fds)
		s.log.Warn("refuse connection without a name and a pipe")
	default:
		unix.SetNonblock(fds[0], true) // so that the wait for its end needs no thread; no other process reads from the pipe
		s.serve(conn, hello{name, m[keyAfter] != "", os.NewFile(uintptr(fds[0]), "life of "+name)})
	}
}

// hello is the first message of a daemon; see Daemon.
type hello struct {
	name  string
	after bool
	life  *os.File
}

// open returns the connection u in the form of package keeper. It returns an error if the other process belongs to
// another user.
func (s *Server) open(u *net.UnixConn) (*keeper.Conn, error) {
	defer u.Close()
	file, err := u.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cred, err := unix.GetsockoptUcred(int(file.Fd()), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, fmt.Errorf("read user of connection: %w", err)
	}
	if int(cred.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("process %d belongs to user %d", cred.Pid, cred.Uid)
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return keeper.Open(fd)
}

// serve handles the connection of a daemon. It waits until no earlier daemon with this name runs, sends the
// descriptors, and then stores and removes descriptors as the daemon demands.
func (s *Server) serve(conn *keeper.Conn, h hello) {
	name := h.name
	d, same, err := s.join(conn, h)
	if err != nil {
		h.life.Close()
		s.log.Warn("wait for the end of the earlier daemon", zap.String("daemon", name), zap.Error(err))
		return
	}
	s.log.Info("daemon connected", zap.String("daemon", name), zap.Int("descriptors", len(d.files)),
		zap.Bool("again", same))
	defer s.disconnected(conn, name, d)
	if !same { // a daemon that connects again has all of them
		err = conn.SendDescriptors(s.filesOf(d))
	}
	if err == nil {
		err = conn.SendKey(keeper.StartServing, "1")
	}
	for err == nil {
		var m keeper.Message
		var fds []int
		if m, fds, err = conn.Receive(); err == nil {
			s.message(d, m, fds)
		}
	}
	if !errors.Is(err, io.EOF) {
		s.log.Warn("read message of daemon", zap.String("daemon", name), zap.Error(err))
	}
}

// filesOf returns a copy of the daemon's descriptors by name.
func (s *Server) filesOf(d *daemon) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(d.files)
}

// join makes conn the present connection of the daemon h.name. If processes of an earlier daemon with this name run,
// join waits for their end. The result same is true if the daemon was connected before and connects again.
func (s *Server) join(conn *keeper.Conn, h hello) (d *daemon, same bool, err error) {
	var st unix.Stat_t
	if err := fstat(h.life, &st); err != nil {
		return nil, false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, false, errors.New("descriptor is not a pipe")
	}
	began := time.Now()
	for waits := false; ; waits = true {
		s.mu.Lock()
		d := s.daemons[h.name]
		if d == nil {
			d = newDaemon()
			s.daemons[h.name] = d
		}
		same := d.life == lifeline(st.Ino) && !signal.Take(d.ended)
		if same || (!h.after || d.life != 0 || time.Since(began) >= patience) && s.isNext(d, h.name, conn) {
			s.admit(d, conn, h, lifeline(st.Ino), same)
			s.mu.Unlock()
			return d, same, nil
		}
		if !waits {
			d.waiting = append(d.waiting, conn)
		}
		changed := d.changed
		s.mu.Unlock()
		if !waits {
			err = conn.SendKey(keyWait, "1")
		}
		if err == nil {
			err = awaitOrGone(conn, changed, time.Second)
		}
		if err != nil {
			s.mu.Lock()
			d.removeWaiting(conn)
			s.mu.Unlock()
			return nil, false, err
		}
	}
}

// isNext reports whether the Server may send the descriptors to the daemon with the connection conn. It may if no other
// daemon has connected later and waits, and no process of the earlier daemon runs, or one has run for too long without
// a connection. The caller holds s.mu.
func (s *Server) isNext(d *daemon, name string, conn *keeper.Conn) bool {
	if at := slices.Index(d.waiting, conn); at >= 0 && at < len(d.waiting)-1 {
		return false
	}
	if signal.Take(d.ended) {
		return true
	}
	late := d.conn == nil && time.Since(d.left) >= patience
	if late {
		s.log.Warn("processes of the earlier daemon do not end; passing its descriptors on", zap.String("daemon", name))
	}
	return late
}

// admit makes conn the present connection of d. same states that the daemon of the last connection connects again. The
// caller holds s.mu.
func (s *Server) admit(d *daemon, conn *keeper.Conn, h hello, life lifeline, same bool) {
	if d.conn != nil {
		d.conn.Close() // the daemon has lost this connection, and stores everything again
	}
	d.conn, d.fresh = conn, map[string]bool{}
	if same {
		h.life.Close()
	} else {
		d.life, d.ended = life, make(chan struct{})
		go s.awaitEnd(h.life, h.name, d, d.ended)
	}
	d.removeWaiting(conn)
}

// fstat calls fstat(2) for f. It does not call File.Fd, which would make reads of the file block a thread.
func fstat(f *os.File, st *unix.Stat_t) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var statErr error
	err = raw.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), st) })
	return errors.Join(err, statErr)
}

// awaitOrGone waits until the channel is closed, or the duration limit has passed. It returns an error if the process
// at the other end of conn has ended, or sends a message although it must wait.
func awaitOrGone(conn *keeper.Conn, ended <-chan struct{}, limit time.Duration) error {
	conn.SetReadDeadline(time.Now().Add(limit))
	received, expired := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(expired)
		select {
		case <-ended:
			conn.SetReadDeadline(time.Unix(1, 0)) // ends Receive
		case <-received:
		}
	}()
	_, fds, err := conn.Receive()
	close(received)
	<-expired
	conn.SetReadDeadline(time.Time{})
	keeper.CloseAll(fds)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err == nil {
		err = errors.New("daemon has sent a message before the answer to the first one")
	}
	return err
}

// awaitEnd waits until no process has the write end of the pipe life, and then closes the channel ended. It forgets the
// daemon if no descriptors are kept for it.
func (s *Server) awaitEnd(life *os.File, name string, d *daemon, ended chan struct{}) {
	defer life.Close()
	buf := make([]byte, 1)
	for { // no process writes to the pipe, so the read returns at its end
		if _, err := life.Read(buf); err != nil {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Info("all processes of the daemon have ended", zap.String("daemon", name), zap.Int("descriptors", len(d.files)))
	close(ended)
	if len(d.files) == 0 && len(d.waiting) == 0 && s.daemons[name] == d && d.ended == ended {
		delete(s.daemons, name)
	}
	d.wake()
}

// disconnected records that the connection conn of the daemon called name has ended.
func (s *Server) disconnected(conn *keeper.Conn, name string, d *daemon) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.conn == conn {
		d.conn, d.left = nil, time.Now()
	}
	s.log.Info("daemon disconnected", zap.String("daemon", name), zap.Int("descriptors", len(d.files)))
}

// message handles one message of a daemon. It owns the descriptors fds, which arrived with the message, and closes
// those that it does not keep.
func (s *Server) message(d *daemon, m keeper.Message, fds []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := m[keeper.Name]
	switch {
	case m[keeper.Store] != "" && len(fds) == 1 && keeper.ValidName(name) == nil:
		d.remove(name)
		d.files[name], d.fresh[name] = fds[0], true
		return
	case m[keeper.Remove] != "":
		d.remove(name)
	case m[keyComplete] != "":
		for name := range maps.Clone(d.files) {
			if !d.fresh[name] {
				d.remove(name)
			}
		}
	}
	keeper.CloseAll(fds) // those of a barrier, too
}

// remove closes the descriptor that is kept under this name, if there is one.
func (d *daemon) remove(name string) {
	if fd, ok := d.files[name]; ok {
		unix.Close(fd)
		delete(d.files, name)
		delete(d.fresh, name)
	}
}

// list sends a description of each daemon, in one message for each.
func (s *Server) list(conn *keeper.Conn) {
	s.mu.Lock()
	var all []keeper.Message
	for _, name := range slices.Sorted(maps.Keys(s.daemons)) {
		d := s.daemons[name]
		mounts := 0
		for file := range d.files {
			if strings.HasSuffix(file, deviceSuffix) {
				mounts++
			}
		}
		m := keeper.Message{keyDaemon: name, keyFiles: strconv.Itoa(len(d.files)), keyMounts: strconv.Itoa(mounts),
			keyWaiting: strconv.Itoa(len(d.waiting))}
		if !signal.Take(d.ended) {
			m[keyRunning] = "1"
		}
		all = append(all, m)
	}
	s.mu.Unlock()
	for _, m := range all {
		if err := conn.Send(m); err != nil {
			return
		}
	}
}
