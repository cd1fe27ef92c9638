package fuse

import (
	"errors"
	"os"
	"reflect"
	"sync"
	"unsafe"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// residentBuffers makes a go-fuse server read requests into buffers whose pages are already in memory.
//
// The kernel takes a request from its queue and then copies the request to the buffer of the reading thread. If a page
// of that buffer does not exist yet and the process has just been killed, the kernel cannot allocate the page
// (mm/gup.c, fatal_signal_pending). Then the request is lost, and its caller gets EIO (fs/fuse/dev.c,
// fuse_dev_do_read), which no successor can repair. Memory that Go has newly allocated has no pages until it is
// written, and go-fuse needs new buffers all the time, since the garbage collector may free the unused ones. So
// residentBuffers replaces go-fuse's pool of buffers by one that writes to every page of a new buffer.
func residentBuffers(s *raw.Server) error {
	field := reflect.ValueOf(s).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return errors.New("replace buffers of the FUSE library: its pool was not found")
	}
	pool := (*sync.Pool)(unsafe.Pointer(field.UnsafeAddr()))
	fresh := pool.New
	*pool = sync.Pool{New: func() any { // a new pool, without the buffer into which go-fuse has read INIT
		buffer := fresh()
		b := buffer.([]byte)
		for i := 0; i < len(b); i += os.Getpagesize() {
			b[i] = 0
		}
		b[len(b)-1] = 0
		return buffer
	}}
	return nil
}
