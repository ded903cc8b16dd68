package elastic_test

import (
	"net"
	"os"
	"syscall"
)

// sendWithFile writes a line and a file descriptor beside it.
func sendWithFile(conn net.Conn, line string, file *os.File) error {
	_, _, err := conn.(*net.UnixConn).WriteMsgUnix([]byte(line+"\n"), syscall.UnixRights(int(file.Fd())), nil)
	return err
}
