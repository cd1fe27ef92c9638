//go:build !amd64

package workday

import "golang.org/x/sys/unix"

// looking contains the numbers of system calls of this architecture that change no file.
var looking = []uint64{unix.SYS_FSTATAT}
